"""Run by test_recurrence.py: the returns' kernel against the loop."""

from __future__ import annotations

import sys

import torch

from dreamlab.accel.dispatch import reference_kernels
from dreamlab.ops.returns import lambda_return


def main(device: str) -> None:
    torch.manual_seed(0)
    reward, discount, value = torch.rand(3, 40, 7, device=device).unbind()
    lam = torch.rand(40, 7, device=device)
    for weight in (0.95, lam):
        fast = lambda_return(reward, discount, value, weight)
        with reference_kernels():
            torch.testing.assert_close(fast, lambda_return(reward, discount, value, weight))
    value.requires_grad_()  # gradients are the loop's
    assert lambda_return(reward, discount, value, 0.9).requires_grad
    print("same")


if __name__ == "__main__":
    main(sys.argv[1])
