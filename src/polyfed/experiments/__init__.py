"""Many runs: sweeps over values and seeds, and papers whose tables are measured again."""
