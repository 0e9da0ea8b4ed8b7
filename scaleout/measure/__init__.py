"""Measurements on real GPUs: kernels and collectives, timed one by one. Needs PyTorch, which scaleout does not install.

python -m scaleout.measure.kernels < kernels.jsonl > measured.jsonl
python -m scaleout.measure.collectives FOLDER < collectives.jsonl
"""
