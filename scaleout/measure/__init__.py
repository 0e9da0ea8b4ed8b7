"""Measurements on a real GPU: kernels, timed one by one. Needs PyTorch, which scaleout does not install.

python -m scaleout.measure.kernels < kernels.jsonl > measured.jsonl
"""
