"""Operations that are not measured here, and borrow the efficiency of others; see `operations`."""

BORROWING = frozenset(
    """
    attention_triton_fwd attention_triton_bwd cross_entropy_fused_fwd cross_entropy_fused_bwd adamw_unfused
    add_fused_fwd add_fused_bwd rope_fwd swiglu_fwd cast_to_fp8 cast_to_fp8_twice gemm_fp8_rowwise
    rms_norm_unfused_fwd rms_norm_unfused_bwd merge_partials_fwd merge_partials_bwd
    batch_norm_fwd batch_norm_bwd pool_fwd pool_bwd
    grouped_gemm grouped_gemm_accumulate fill
    """.split()  # noqa: SIM905 - a list of strings hides them
)
"""Operations that are not measured here: a compiler's, Triton's, other libraries', those between convolutions."""
