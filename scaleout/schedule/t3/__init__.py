"""Tracked and triggered overlap of a GEMM with the collective that takes its output, as hardware could do it.

`gemm` cuts a GEMM into stages, `cache` says what they read, `memory` who is served first, `ring` what
collectives of units take and move; `overlap` runs a GEMM and its collective through the memory, stage by stage, and
`sublayer` compares the configurations of T3. Nothing here knows graphs or schedules.

Source: Pati et al., T3: Transparent Tracking & Triggering for Fine-grained Overlap of Compute & Collectives, ASPLOS
2024 (arXiv:2401.16677).
"""
