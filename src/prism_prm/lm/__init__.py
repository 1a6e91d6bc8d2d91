"""Language models, as PRMs and policies both need them: loaded with every weight accounted for."""
