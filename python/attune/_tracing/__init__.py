"""Functions of the user, and graphs of ONNX, as the text of score_mod, mask_mod and prob_mod."""
