"""The paper's closed forms, exact where it approximates, and what can be checked of them on real scores.

`closed_forms`: Best-of-N under a verifier that errs, how step errors add up over a solution, and what the
step-contrastive and the pointwise loss do to the center and the margin of a pair.
`dominance`: when one PRM has the lower FPR at every TPR, and what that has to do with shifted scores.
`simulation`: pointwise against pairwise training on the same matched pairs.
"""
