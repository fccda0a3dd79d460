"""The looks of the page. A colour is named once, by what it stands for, and again for dark screens where it differs."""

from __future__ import annotations

# Forward is blue, backward amber, weight green, from light to dark for the stages of one device; told apart by people
# who see few colours (Okabe and Ito's hues).
STYLE = """
:root {
  color-scheme: light dark;
  --surface: #ffffff; --ground: #eef0f3; --ink: #1b1f24; --quiet: #5c6670; --line: #d4d9df; --alarm: #b3261e;
  --on-light: #14202b; --on-dark: #ffffff;
  --forward0: #8cc4ee; --forward1: #4690d2; --forward2: #2467a3; --forward3: #15466f;
  --backward0: #f6c374; --backward1: #dd962c; --backward2: #a8680a; --backward3: #744703;
  --weight0: #93d8b6; --weight1: #43a97e; --weight2: #1d7953; --weight3: #0f5037;
  --collective: #cf6fa1; --update: #8d98a5; --several: #6d7680; --send: #0f7c86; --receive: #7d52c4;
  --parameters: #4f78a8; --gradients: #82a7cc; --optimizer: #b5cde4; --framework: #c3c8ce;
  --activations: #e9a66f; --temporary: #cb5b3e; --buffers: #7d52c4;
}
@media (prefers-color-scheme: dark) {
  :root {
    --surface: #14181d; --ground: #232930; --ink: #e6e9ed; --quiet: #9aa5b1; --line: #3a424c; --alarm: #ff8a80;
    --forward3: #1d5a8d; --backward3: #8a5608; --weight3: #166b4a;
    --update: #7b8692; --several: #a5afba; --send: #35b5c0; --receive: #a98be6; --framework: #7c858f;
    --buffers: #a98be6;
  }
}
body { margin: 0; padding: 20px 24px 40px; background: var(--surface); color: var(--ink);
  font: 14px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 22px; margin: 0 0 4px; }
h2 { font-size: 16px; margin: 28px 0 6px; }
p, li { max-width: 100ch; margin: 4px 0; }
.quiet { color: var(--quiet); }
dl.facts { display: flex; flex-wrap: wrap; gap: 10px; margin: 14px 0 0; }
dl.facts div { background: var(--ground); border-radius: 6px; padding: 8px 14px; }
dl.facts dt { color: var(--quiet); font-size: 12px; }
dl.facts dd { margin: 0; font-size: 18px; font-weight: 600; font-variant-numeric: tabular-nums; }
dl.facts dd small { font-weight: 400; font-size: 12px; color: var(--quiet); }
.alarm { color: var(--alarm); font-weight: 600; }
ul.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 18px; padding: 0; margin: 6px 0; }
ul.legend li { display: flex; align-items: center; gap: 6px; }
.chart { overflow-x: auto; }
.row { display: flex; width: max-content; }
.before { position: sticky; left: 0; width: max-content; max-width: calc(100vw - 64px); padding-bottom: 8px; }
.before h2 { margin-top: 16px; }
svg { display: block; flex: none; font: 11px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
svg.names { position: sticky; left: 0; background: var(--surface); z-index: 1; }
svg text { fill: var(--on-light); font-size: 8.5px; text-anchor: middle; font-variant-numeric: tabular-nums;
  pointer-events: none; }
svg text.s2, svg text.s3 { fill: var(--on-dark); }
svg text.name, svg text.quiet, svg text.axis, svg text.peak { fill: var(--ink); font-size: 11px; text-anchor: start;
  pointer-events: auto; }
svg text.name { font-weight: 600; }
svg text.quiet, svg text.axis { fill: var(--quiet); }
svg text.middle { text-anchor: middle; }
svg text.end { text-anchor: end; }
svg text.limit, svg text.over { fill: var(--alarm); }
svg text.peak { paint-order: stroke; stroke: var(--surface); stroke-width: 5px; stroke-linejoin: round; }
rect { fill: var(--update); stroke: var(--surface); stroke-width: 0.5px; }
rect.waiting { fill: var(--ground); stroke: none; }
rect.forward.s0 { fill: var(--forward0); } rect.forward.s1 { fill: var(--forward1); }
rect.forward.s2 { fill: var(--forward2); } rect.forward.s3 { fill: var(--forward3); }
rect.backward.s0 { fill: var(--backward0); } rect.backward.s1 { fill: var(--backward1); }
rect.backward.s2 { fill: var(--backward2); } rect.backward.s3 { fill: var(--backward3); }
rect.weight.s0 { fill: var(--weight0); } rect.weight.s1 { fill: var(--weight1); }
rect.weight.s2 { fill: var(--weight2); } rect.weight.s3 { fill: var(--weight3); }
rect.reduce, rect.collective { fill: var(--collective); }
rect.several { fill: var(--several); }
.send { fill: var(--send); stroke: none; } .receive { fill: var(--receive); stroke: none; }
rect.send, rect.receive { stroke: none; }
.parameters { fill: var(--parameters); } .gradients { fill: var(--gradients); } .optimizer { fill: var(--optimizer); }
.framework { fill: var(--framework); } .activations { fill: var(--activations); }
.temporary { fill: var(--temporary); } .buffers { fill: var(--buffers); }
rect.parameters, rect.gradients, rect.optimizer, rect.framework { stroke: none; }
path.tick { stroke: var(--line); stroke-width: 1px; }
path.end-of-step { stroke: var(--ink); stroke-width: 1px; stroke-dasharray: 3 3; }
path.limit { stroke: var(--alarm); stroke-width: 1.5px; stroke-dasharray: 6 4; fill: none; }
rect.stage { fill: var(--ground); stroke: var(--line); stroke-width: 1px; }
rect.stage.longest { stroke: var(--forward2); stroke-width: 2px; }
path.edge { fill: none; stroke: var(--quiet); stroke-width: 1px; }
path.edge.longest { stroke: var(--forward2); stroke-width: 2px; }
circle.peak { fill: var(--ink); stroke: var(--surface); stroke-width: 1px; }
.tables { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 4px 0; }
caption { text-align: left; font-weight: 600; padding: 10px 0 4px; }
th, td { text-align: right; padding: 3px 12px 3px 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; } thead th { color: var(--quiet); font-weight: 400; }
th.words, td.words { text-align: left; }
footer { margin-top: 28px; color: var(--quiet); font-size: 12px; }
"""
