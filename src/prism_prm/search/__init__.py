"""Search for solutions with a policy and a PRM, label steps by rollouts, and re-rank pools of solutions."""
