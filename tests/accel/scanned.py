"""Run by test_rssm_scan.py in a process of its own: Triton's interpreter is chosen at import."""

from __future__ import annotations

import gc
import sys

import torch

from dreamlab.accel.rssm_scan import Found
from dreamlab.components.world_models.rssm import RSSM, Latent, RSSMConfig, follow


def main(device: str, classes: int, rows: int) -> None:
    """Follow the same sequences step by step and as one node; compare states and gradients."""
    torch.manual_seed(0)
    config = RSSMConfig(deter=64, hidden=32, stoch=16, classes=classes, blocks=2)
    rssm = RSSM(config, token_dim=24, action_dim=3).to(device)
    for p in rssm.parameters():
        p.data.add_(0.1 * torch.randn_like(p))  # biases are 0 and scales 1 at the start
    t = 4
    start = rssm.initial(rows, device)
    start = Latent(torch.randn_like(start.deter), torch.randn_like(start.stoch))
    action = torch.randn(rows, t, 3, device=device)
    tokens = torch.randn(rows, t, 24, device=device, requires_grad=True)
    first = torch.rand(rows, t, device=device) < 0.3
    noise = rssm.noise(t, rows, device=device)
    plain = follow(rssm.observe_step, start, (action, tokens, first), noise)
    fused = rssm._scan(start, action, tokens, first, noise)
    inputs = [tokens, *rssm.cell.parameters(), *rssm.post_net.parameters()]
    inputs += list(rssm.post_out.parameters())
    pull = [torch.randn_like(x) for x in (plain[0].deter, plain[0].stoch, plain[1])]
    grads: list[tuple[torch.Tensor, ...]] = []
    for latent, logits in (plain, fused):
        pairs = zip((latent.deter, latent.stoch, logits), pull, strict=True)
        grads.append(torch.autograd.grad(sum((a * b).sum() for a, b in pairs), inputs))
    torch.testing.assert_close(fused[0].deter, plain[0].deter, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(fused[0].stoch, plain[0].stoch, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(fused[1], plain[1], atol=1e-5, rtol=1e-4)
    names = ["tokens", *(k for k, _ in rssm.named_parameters() if not k.startswith("prior"))]
    for i, (name, a, b) in enumerate(zip(names, *grads, strict=True)):
        torch.testing.assert_close(b, a, atol=2e-5, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}")
        assert a.abs().max() > 0, (i, name)


if __name__ == "__main__":
    gc.collect()
    gc.disable()
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    left = sum(isinstance(x, Found) for x in gc.get_objects())
    assert not left, "what gradients were computed from is kept by a cycle"
    print("same")
