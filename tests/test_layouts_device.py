"""Every backend on a GPU: each layout, placement and batch is computed exactly inside out, or refused beforehand."""

from __future__ import annotations

import pytest
import torch
from placements import FORMS, SHARINGS, placed, untouched

import hgemm

pytestmark = pytest.mark.gpu

LAYOUTS = ("nn", "nt", "tn", "tt")
OUT_FORMS = ("n dense", "n padded", "n odd", "n strided", "t dense", "t padded", "t odd")
TAKES_EVERYTHING = ("torch", "cuda_cp_async", "triton_pointer")
NAMES = hgemm.backends().names


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
def test_every_placement_is_exact_or_refused(name: str, layout: str) -> None:
    record = hgemm.backends()[name]
    if reason := record.unavailable("cuda"):
        pytest.skip(reason)
    taken = 0
    for shape in ((264, 272, 136), (131, 77, 67)):
        for form in FORMS:
            for index, sharing in enumerate(SHARINGS):
                for out_form in OUT_FORMS[index % 2 :: 2]:
                    placement = (layout, form, out_form, sharing)
                    a, b, out, expected = placed(shape, torch.bfloat16, *placement, device="cuda")
                    for config in (None, *record.configs):
                        out.fill_(torch.nan)
                        try:
                            hgemm.matmul(a, b, backend=name, config=config, out=out)
                        except hgemm.UnsupportedProblem as refusal:
                            assert name not in TAKES_EVERYTHING or "shared memory" in str(refusal), placement
                            assert out.isnan().all(), placement
                            continue
                        assert torch.equal(out, expected), (shape, config, placement)
                        assert untouched(out), (shape, config, placement)
                        taken += 1
    assert taken >= 20
