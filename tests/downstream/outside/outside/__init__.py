"""A package that extends Partita as a stranger would: a device, a planner for it, a recipe, a strategy and a verb."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from partita.hooks import hookimpl


class Recipe:
    names = ("outside-gpt",)

    def config(self, name):
        return {"model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 100, "n_positions": 32}

    def run(self, name, options):
        print(f"{name} trained with {list(options)}")
        return 1 if "--fail" in options else 0


@hookimpl
def partita_recipe():
    return Recipe()


@hookimpl
def partita_capture(model, samples, seq, dtype):
    if model not in Recipe.names:
        return None
    from partita.plugins.capture_huggingface import capture_config

    return capture_config(Recipe().config(model), samples=samples, seq=seq, dtype=dtype, name=model)


@hookimpl
def partita_cluster_presets():
    return [Path(__file__).parent / "presets" / "xylophone-1.json"]


@hookimpl
def partita_planner(problem):
    """This device's own runtime knows GPipe alone; all other devices are left to the other engines."""
    if problem.cluster.device.name != "xylophone-1" or "schedule" in problem.fix:
        return None
    from partita.planner import plan

    found = plan(replace(problem, fix={**problem.fix, "schedule": "gpipe"}))
    return replace(found, search=replace(found.search, engine="outside"))


@hookimpl
def partita_strategies(problem, groups):
    """Tensor parallelism of feed-forward layers alone: half the all-reduces, and attention on every device."""
    if problem.graph.name != "outside-gpt":
        return None
    from partita.plan import Cut
    from partita.planner.joint.manner import Manner

    def cuts(block, classes):
        return [Cut("hidden", ("tensor",))] if "hidden" in classes else None

    return [Manner("feed-forward", cuts, fits=lambda dp, tp: tp > 1, each=True)]


@hookimpl
def partita_verbs(app):
    from partita.cli import answer
    from partita.cli.model import load_model

    @app.command("parameters")
    def parameters(model: str) -> int:
        """Count a model's parameters."""
        count = load_model(model, None, "float32").parameter_count
        answer.write_json({"parameters": count})
        return 0 if count % 2 == 0 else 1
