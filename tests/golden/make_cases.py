#!/usr/bin/env python3
"""Writes known answers for the operators and mixer layers, from the float64 formulas beside it.

Usage: make_cases.py [OUT_DIR] [--seed N]

README.md says what a file holds. Needs torch, numpy and h5py. Every case draws from one stream of
random numbers: append writers to the end, and the cases before them stay as they are.
"""
import argparse
from pathlib import Path

import torch

import layer_cases as layers
import operator_cases as operators
import sparse_cases as sparse
from case_file import Writer

WRITERS = (operators.write_sequence_operators, operators.write_row_operators,
           layers.write_gdn_layers, layers.write_full_layers, operators.write_channel_decay,
           layers.write_more_delta_layers, layers.write_window_layer,
           operators.write_additive_scans, operators.write_ssd, operators.write_mlstm,
           operators.write_kl_divergence, layers.write_linear_layers, layers.write_gated_layers,
           layers.write_mamba2_layer, layers.write_mlstm_layer, sparse.write_nsa,
           sparse.write_dsa)


def main():
    """Writes every case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out_dir", nargs="?", default=Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=20)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    Path(args.out_dir).mkdir(parents=True, exist_ok=True)
    writer = Writer(args.out_dir)
    for write in WRITERS:
        write(writer)
    files = list(Path(args.out_dir).glob("*.h5"))
    print(f"{len(files)} cases, {sum(f.stat().st_size for f in files) / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
