"""T3: a GEMM tracked, and the collective that takes its output triggered, as hardware could do it.

Modules know no graphs, but `schedule`. See docs/models/t3.md. Source: Pati et al., T3: Transparent Tracking &
Triggering for Fine-grained Overlap of Compute & Collectives, ASPLOS 2024 (arXiv:2401.16677).
"""
