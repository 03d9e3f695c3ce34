"""The DDP smoke test: it can fail, it cannot hang, and it names the culprit.

cli → launcher → worker (one per rank) → phases, in order
                    ├─ meeting    ranks agree through the store, which works when a collective does not
                    ├─ watchdog   ends a rank whose deadline passed
                    └─ ending     says where every rank stood when that happened
"""
