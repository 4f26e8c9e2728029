"""What all files of tests share."""


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: left out of the short form that continuous integration runs")
