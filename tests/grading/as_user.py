"""Run attacks as whoever starts this, and print the faults: python as_user.py bubblewrap [attack …]."""

from __future__ import annotations

import sys

import attacks

from waiting import until

attacks.adopt_orphans()
chosen = [attack for attack in attacks.ATTACKS if attack.name in sys.argv[2:] or not sys.argv[2:]]
for level in filter(None, (sys.argv[1], "landlock")):
    for attack in chosen:
        with attacks.scene() as aim:
            fault = attacks.fault_of(attack, attacks.run_attack(attack, level, aim))
            harm = attacks.harm_done(aim)
        if fault or harm:
            print(level, attack.name, fault, harm)
    until(lambda: not attacks.children())
for attack in chosen:
    if attack.harmless == "for all":
        with attacks.scene() as aim:
            if b"BREACH" not in attacks.run_attack(attack, "none", aim).stdout:
                print("does not work without isolation:", attack.name)
print(len(chosen), "attacks")
