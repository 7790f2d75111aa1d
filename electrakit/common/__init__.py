"""What all stages share, and what imports none of them: errors, atomic writes, hashes, worker pools, progress."""
