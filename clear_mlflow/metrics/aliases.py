"""Metrics with the formula of another family's metric, under the name of a paper or program.

GEM (Lopez-Paz & Ranzato, NeurIPS 2017, arXiv:1706.08840, equations 2 to 4; ``metrics/metrics.py``
of facebookresearch/GradientEpisodicMemory, 34c6b8e): the equations, as in Renate, mammoth and
Avalanche. The authors' program divides backward and forward transfer by T instead of T - 1.

TiC-CLIP (Garg et al., ICLR 2024, arXiv:2310.16226): CLEAR's regions. TiC-LM (Li et al., ACL 2025,
arXiv:2504.02107) takes the same means of log-perplexities minus the means of an oracle.

The sources of the other families are named in their own modules: ``chaudhry`` (A_k, and F_k as
their ``compute_fgt`` computes it), ``diaz_rodriguez`` (A and FWT), ``capymoa`` (the same quantities
in ``OCLMetrics``) and ``zscl``.
"""

from __future__ import annotations

from dataclasses import replace

from clear_mlflow.metrics import capymoa, clear, icarl, renate

# Name, original, and name for another score than accuracy (the same if empty).
ALIASES = (
    ("gem/average_accuracy", "renate/average_accuracy", "gem/average_{score}"),
    ("gem/backward_transfer", "renate/backward_transfer", ""),
    ("gem/forward_transfer", "renate/forward_transfer", ""),
    ("tic/in_domain", "clear/in_domain_accuracy", ""),
    ("tic/backward_transfer", "clear/backward_transfer", "tic/backward_{score}"),
    ("tic/forward_transfer", "clear/forward_transfer", "tic/forward_{score}"),
    ("chaudhry/average_accuracy", "renate/average_accuracy", "chaudhry/average_{score}"),
    ("chaudhry/forgetting", "renate/forgetting", ""),
    ("diaz_rodriguez/accuracy", "clear/accuracy", "diaz_rodriguez/{score}"),
    ("diaz_rodriguez/forward_transfer", "clear/forward_transfer", "diaz_rodriguez/forward_{score}"),
    ("capymoa/accuracy_seen_avg", "icarl/average_incremental_accuracy", "capymoa/{score}_seen_avg"),
    ("capymoa/forward_transfer", "clear/forward_transfer", "capymoa/forward_{score}"),
    ("zscl/average", "capymoa/accuracy_all_avg", "zscl/average_{score}"),
    ("zscl/last", "capymoa/accuracy_final", "zscl/last_{score}"),
)
_ORIGINALS = {m.name: m for family in (clear, renate, capymoa, icarl) for m in family.METRICS}

METRICS = tuple(
    replace(_ORIGINALS[original], name=name, score_name=score_name, headline="", rank_priority=0)
    for name, original, score_name in ALIASES
)
