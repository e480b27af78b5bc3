"""Quantized checkpoints in safetensors: AWQ, GPTQ and compressed-tensors."""
