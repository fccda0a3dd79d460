"""``python -m partita.plugins.doctor``: the doctor alone, for when a broken plugin keeps ``partita`` from starting."""

from __future__ import annotations

import sys

from partita.plugins.doctor.verb import doctor

if __name__ == "__main__":
    rest = [word for word in sys.argv[1:] if word != "--json"]
    if rest:
        sys.exit(f"partita: the doctor takes --json and nothing else, not {' '.join(rest)}")
    sys.exit(doctor(as_json="--json" in sys.argv[1:]))
