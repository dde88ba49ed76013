"""Speed and memory at depth: the full cache against budgets and policies, as ratios in one run."""
