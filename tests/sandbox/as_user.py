"""Run attacks as whoever starts this, and print the faults: python as_user.py bubblewrap [attack …]."""

from __future__ import annotations

import sys
import time

import attacks

attacks.adopt_orphans()
chosen = [attack for attack in attacks.ATTACKS if attack.name in sys.argv[2:] or not sys.argv[2:]]
for level in filter(None, (sys.argv[1], "landlock")):
    for attack in chosen:
        with attacks.scene() as aim:
            fault = attacks.fault_of(attack, attacks.run_attack(attack, level, aim))
            harm = attacks.harm_done(aim)
        if fault or harm:
            print(level, attack.name, fault, harm)
    for _ in range(100):
        if not attacks.children():
            break
        time.sleep(0.05)
    else:
        print(level, "left processes")
for attack in chosen:
    if attack.harmless == "for all":
        with attacks.scene() as aim:
            if b"BREACH" not in attacks.run_attack(attack, "none", aim).stdout:
                print("does not work without isolation:", attack.name)
print(len(chosen), "attacks")
