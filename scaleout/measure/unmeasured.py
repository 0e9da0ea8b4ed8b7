"""Operations that are not measured here, and borrow the efficiency of others; see `operations`."""

BORROWING = frozenset(
    """
    attention_triton_fwd attention_triton_bwd adamw_unfused add_fused_fwd add_fused_bwd cast_to_fp8 cast_to_fp8_twice
    gemm_fp8_rowwise rms_norm_unfused_fwd rms_norm_unfused_bwd merge_partials_fwd merge_partials_bwd
    grouped_gemm grouped_gemm_accumulate fill
    """.split()  # noqa: SIM905 - a list of strings hides them
)
"""Operations that other software runs than is measured here: Triton's, other libraries'."""
