"""What verifier errors cost: closed forms, simulations, and a report on real scores."""
