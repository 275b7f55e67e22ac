"""The linear layer of GPT-2, without transformers."""

import torch
from torch import nn


class Conv1D(nn.Module):
    """The linear layer of GPT-2 in transformers: its weight is (inputs, outputs)."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight, self.bias = nn.Parameter(torch.empty(nx, nf)), nn.Parameter(torch.zeros(nf))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x):
        return torch.addmm(self.bias, x, self.weight)
