"""The DDP smoke test: it can fail, it cannot hang, and it names the culprit.

cli → launcher → runner (one per rank) → phases, in order
                    ├─ context      what a phase works with; exchanges between ranks go through the
                    │               store, which works when a collective does not
                    ├─ watchdog     ends a rank that passes its deadline
                    ├─ postmortem   where every rank was when that happened, and which rank is to blame
                    └─ reporter     writes the report after every phase
"""
