"""The paper's closed forms, exact where it approximates, and what can be checked of them on real scores.

`selection`: Best-of-N under a verifier that errs, and how step errors add up over a solution.
`centre_margin`: what the step-contrastive and the pointwise loss do to the centre and the margin of a pair.
`dominance`: when one PRM has the lower FPR at every TPR, and what that has to do with shifted scores.
`simulation`: pointwise against pairwise training on the same matched pairs.
"""
