"""attune.ggml in a process without ggml. With it: make test-ggml."""

import pathlib

import pytest

import attune.ggml


def test_the_plug_in_is_there():
    path = pathlib.Path(attune.ggml.library_path())
    assert path.name == "libggml-attune.so" and path.exists()


def test_another_plug_in_may_be_named(monkeypatch):
    monkeypatch.setenv("ATTUNE_GGML_LIBRARY", "/elsewhere/plugin.so")
    assert attune.ggml.library_path() == "/elsewhere/plugin.so"


def test_a_process_without_ggml_is_refused():
    with pytest.raises(RuntimeError, match="no libggml.so; import llama_cpp first"):
        attune.ggml.load()
