"""The key is noticed by a script that says nothing of Partita, however it imports DeepSpeed; what fails breaks nothing.

torch loads Partita by its real entry point. Where the order of imports is tried in every way, torch and DeepSpeed are
small packages that import one another as theirs do; the last tests take the real ones.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.doctor.environment import Environment, bare

pytestmark = pytest.mark.slow

# As torch does it at the end of its import.
TORCH = """
import os
from importlib.metadata import entry_points
if os.getenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1":
    for entry in entry_points(group="torch.backends"):
        entry.load()()
"""
# It fails where a file says so, and takes the file away.
DEEPSPEED = """
import os
import torch
import deepspeed.early
if os.path.exists("fails"):
    os.remove("fails")
    raise ImportError("half of it")
def own(**arguments):
    return "DeepSpeed's own", sorted(arguments)
initialize = own
import deepspeed.late
"""
FILES = {
    "torch/__init__.py": TORCH, "deepspeed/__init__.py": DEEPSPEED, "deepspeed/early.py": "import torch\n",
    "deepspeed/late.py": "import torch\n",
}  # fmt: skip
# Whether it is wrapped by now, and how often; nothing may be left in the module that torch's users don't know.
ASK = """
import sys
def depth(function):
    return 0 if function is sys.modules["deepspeed"].own else 1 + depth(function.__wrapped__)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    made = bare(tmp_path_factory.mktemp("notice") / "environment")
    made.install("torch", "2.13.0", FILES)
    return made


def says(environment: Environment, code: str, *options: str, **variables: str) -> tuple[str, str]:
    """What it prints, and what it complains of; it must end well."""
    done = environment.run(*options, "-c", ASK + code, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr.strip()


ORDERS = {
    "torch first": "import torch, deepspeed; f = deepspeed.initialize",
    "DeepSpeed first": "import deepspeed, torch; f = deepspeed.initialize",
    "a part first": "import deepspeed.late; import deepspeed; f = deepspeed.initialize",
    "a name": "from deepspeed import initialize as f",
    "a name, torch first": "import torch\nfrom deepspeed import initialize as f",
    "looked for first": "import torch\nfrom importlib.util import find_spec\n"
    "assert find_spec('deepspeed').name == 'deepspeed'\nimport deepspeed; f = deepspeed.initialize",
    "by name": "import importlib; f = importlib.import_module('deepspeed').initialize",
    "at the second try": "open('fails', 'w').close()\ntry:\n    import deepspeed\nexcept ImportError as error:\n"
    "    assert str(error) == 'half of it'\nimport deepspeed; f = deepspeed.initialize",
    "at the second try, torch first": "import torch\nopen('fails', 'w').close()\ntry:\n    import deepspeed\n"
    "except ImportError as error:\n    assert str(error) == 'half of it'\nimport deepspeed; f = deepspeed.initialize",
    "torch once more": "import torch, deepspeed, importlib\nimportlib.reload(torch); f = deepspeed.initialize",
    "many threads": "import concurrent.futures as c\n"
    "def see(_):\n    from deepspeed import initialize\n    return initialize\n"
    "with c.ThreadPoolExecutor(8) as pool:\n    (f,) = set(pool.map(see, range(8)))",
}


@pytest.mark.parametrize("order", ORDERS)
def test_however_deepspeed_is_imported(order: str, environment: Environment) -> None:
    tidy = "; from importlib.machinery import ModuleSpec; print(type(sys.modules['deepspeed'].__spec__) is ModuleSpec)"
    assert says(environment, f"{ORDERS[order]}\nprint(depth(f)){tidy}") == ("1\nTrue", "")


def test_without_the_key_deepspeed_gets_what_it_was_given(environment: Environment) -> None:
    code = "import deepspeed; print(*deepspeed.initialize(model=1, config={'train_batch_size': 4}))"
    assert says(environment, code) == ("DeepSpeed's own ['config', 'model']", "")


@pytest.mark.parametrize(
    ("variables", "depth", "complaint"),
    [
        ({"PARTITA_NOTICE": "off"}, 0, None),
        ({"PARTITA_NOTICE": "Off"}, 0, None),
        ({"PARTITA_NOTICE": "0"}, 0, None),
        ({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, 0, None),
        ({"PARTITA_NOTICE": "on"}, 1, None),
        ({"PARTITA_NOTICE": "1"}, 1, None),
        ({"PARTITA_NOTICE": ""}, 1, None),
        ({"PARTITA_NOTICE": "no"}, 1, 'PARTITA_NOTICE is "no", which is neither off (or 0) nor on (or 1)'),
        ({"PARTITA_NOTICE": "2"}, 1, 'PARTITA_NOTICE is "2", which is neither off (or 0) nor on (or 1)'),
    ],
)
def test_the_switch(environment: Environment, variables: dict[str, str], depth: int, complaint: str | None) -> None:
    out, err = says(environment, "import deepspeed; print(depth(deepspeed.initialize))", "-W", "error", **variables)
    assert (out, err) == (str(depth), f"partita: {complaint}; it is taken for on" if complaint else "")


@pytest.mark.parametrize("variables", [{}, {"PARTITA_NOTICE": "off"}, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}], ids=str)
@pytest.mark.parametrize("rank", [{}, {"RANK": "0"}], ids=["alone", "torchrun"])
def test_partita_run_notices_in_any_case(
    environment: Environment, variables: dict[str, str], rank: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"{ASK}\nfrom deepspeed import initialize\nprint(depth(initialize))\n")
    assert environment.run(str(script), **variables).stdout == ("0\n" if variables else "1\n")
    done = environment.run("-m", "partita.cli.main", "run", str(script), **variables, **rank)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_at_the_import_of_torch_next_to_nothing_is_imported(environment: Environment) -> None:
    before = "import importlib.metadata\nbefore = set(sys.modules)\n"
    code = f"{before}import torch; print(*sorted(name for name in set(sys.modules) - before if 'partita' in name))"
    here = "partita partita.adapters partita.adapters.notice partita.noticing"
    out, err = says(environment, code)
    assert (" ".join(name for name in out.split() if not name.startswith("__editable__")), err) == (here, "")
    code = f"{before}import torch; print(len(set(sys.modules) - before - {{'torch'}}) < 12)"
    assert says(environment, code) == ("True", "")


@pytest.mark.parametrize(
    ("breaks", "says_what"),
    [
        ("m.install = None", "TypeError: 'NoneType' object is not callable"),
        (
            "sys.modules[m.__name__] = None",
            "ModuleNotFoundError: import of partita.adapters.deepspeed.wrap halted; None",
        ),
        ("def install():\n    raise RuntimeError('two\\nlines')\nm.install = install", "RuntimeError: two lines."),
    ],
)
@pytest.mark.parametrize("first", ["torch", "deepspeed"])
def test_what_fails_is_one_line(environment: Environment, breaks: str, says_what: str, first: str) -> None:
    code = (
        "import types; m = sys.modules['partita.adapters.deepspeed.wrap'] = "
        f"types.ModuleType('partita.adapters.deepspeed.wrap')\n{breaks}\n"
        f"import {first}, deepspeed, torch\nprint(depth(deepspeed.initialize), *deepspeed.initialize(config=1))"
    )
    out, err = says(environment, code, "-W", "error")
    assert out == "0 DeepSpeed's own ['config']"
    assert err.startswith(f'partita: the key "partita" is not noticed in DeepSpeed\'s configuration: {says_what}')
    assert err.endswith("Look at: partita doctor. PARTITA_NOTICE=off turns the notice off")
    assert "\n" not in err


def test_nobody_needs_to_listen(environment: Environment) -> None:
    """With stderr closed, what would be said there must not come on stdout."""
    command = f"PARTITA_NOTICE=no {environment.python} -c 'import torch, deepspeed; print(1)' 2>&-"
    done = environment.run("-c", f"import subprocess; subprocess.run({command!r}, shell=True, check=True)")
    assert (done.returncode, done.stdout) == (0, "1\n")


def test_where_there_is_no_deepspeed(tmp_path: Path) -> None:
    made = bare(tmp_path / "environment")
    made.install("torch", "2.13.0", {"torch/__init__.py": TORCH})
    code = "import torch\ntry:\n    import deepspeed\nexcept ModuleNotFoundError as error:\n    print(error)"
    assert says(made, code) == ("No module named 'deepspeed'", "")
    assert says(made, "import torch, importlib.util; print(importlib.util.find_spec('deepspeed'))") == ("None", "")


@pytest.mark.parametrize("package", ["pluggy", "numpy", "pydantic", "typer", "rich"])
def test_where_partitas_own_needs_are_missing(package: str, tmp_path: Path) -> None:
    """Whoever has no key is not bothered with it."""
    made = bare(tmp_path / "environment")
    made.install("torch", "2.13.0", FILES)
    (made.packages / package).unlink()
    code = "import deepspeed; print(*deepspeed.initialize(config={'train_batch_size': 4}))"
    assert says(made, code) == ("DeepSpeed's own ['config']", "")


@pytest.mark.parametrize(
    ("first", "variables", "wrapped"),
    [
        ("import torch", {}, True),
        ("from deepspeed import initialize", {}, True),
        ("import torch", {"PARTITA_NOTICE": "off"}, False),
    ],
)
def test_the_real_ones(first: str, variables: dict[str, str], wrapped: bool) -> None:
    pytest.importorskip("deepspeed")
    code = (
        f"{first}\nimport deepspeed\nfrom deepspeed import initialize\n"
        "own = getattr(initialize, '__wrapped__', initialize)\n"
        "wrapped = own is not initialize\n"
        "print(initialize is deepspeed.initialize, own.__code__.co_filename == deepspeed.__file__, wrapped)"
    )
    done = Environment(Path(sys.prefix)).run("-c", code, **variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"True True {wrapped}"
