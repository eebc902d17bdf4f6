"""Operations on runs: launch, wait, stop, and what they check."""
