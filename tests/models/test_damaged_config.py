"""Whatever a config.json holds, it is read or refused by name: no other error, and no table that cannot be made."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from tokenmill.core.errors import ModelFileError
from tokenmill.kernels.rotary import rotary_table
from tokenmill.models.families import FAMILIES
from tokenmill.models.hf_config import read_config, spec_from
from tokenmill.models.hf_rope import KINDS
from tokenmill.models.rope import inverse_frequencies

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
    "max_position_embeddings": 128,
}
KEYS = (
    *SIZES,
    *("head_dim", "sliding_window", "use_sliding_window", "max_window_layers", "layer_types"),
    *("sliding_window_pattern", "rope_theta", "rope_local_base_freq", "partial_rotary_factor"),
    *("original_max_position_embeddings", "num_experts", "num_local_experts", "num_experts_per_tok"),
    *("decoder_sparse_step", "mlp_only_layers", "moe_intermediate_size", "norm_topk_prob"),
    *("query_pre_attn_scalar", "hidden_act", "hidden_activation", "attention_bias", "mlp_bias"),
    *("tie_word_embeddings", "rms_norm_eps", "text_config", "architectures", "model_type"),
)
ROPE: dict[str, Any] = {
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
}
ROPE_KEYS = (
    *ROPE,
    *("rope_theta", "attention_factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow", "truncate"),
    *("original_max_position_embeddings", "partial_rotary_factor"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, "x", "silu", {}, {"a": 1}, [], [1], [1.0] * 8, [1e-45] * 8, [1e-320] * 8),
    *(["full_attention"] * 3, ["sliding_attention"] * 3),
    *(-1, 0, 1, 2, 3, 7, 16, 64, 10**400, 0.5, 4.0, 1 + 2**-52, 1e-320, 1e-45, 1e308, math.nan, math.inf),
)


def damaged(chance: random.Random) -> dict[str, Any]:
    family = chance.choice(FAMILIES)
    rope = {"rope_type": chance.choice(KINDS), **ROPE}
    rope |= {key: chance.choice(VALUES) for key in chance.sample(ROPE_KEYS, chance.randint(0, 2))}
    scaling = {"full_attention": rope, "sliding_attention": {}} if family.local_rope else rope
    config = {"architectures": [chance.choice(family.classes)], **SIZES, "rope_parameters": scaling}
    return config | {key: chance.choice(VALUES) for key in chance.sample(KEYS, chance.randint(0, 2))}


def test_a_damaged_configuration_is_read_or_refused(tmp_path: Path) -> None:
    chance = random.Random(11)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(600):
        (tmp_path / "config.json").write_text(json.dumps(damaged(chance)))
        try:
            spec = spec_from(read_config(tmp_path), has_lm_head=True)
        except ModelFileError:
            outcomes["refused"] += 1
            continue
        outcomes["read"] += 1
        for rope in spec.ropes:
            for context in (1, spec.max_position):
                assert len(inverse_frequencies(rope, context)) == rope.dim // 2
            table = rotary_table(rope, 3)
            assert bool(table.cos.isfinite().all() and table.sin.isfinite().all()), rope
            assert rope.attention_factor > 1e-7  # no table of zeros
        for layer in spec.layers:
            assert 1e-7 < layer.scale < 1e7
    assert min(outcomes.values()) > 100  # the damage reaches both
