"""Which series each fault moves, measured: what docs/faults.py writes down."""
