"""FLOPs, bytes and parameters of a torch module, layer by layer, without running it for real.

Needs the standard library and torch alone, so that it runs under the interpreter of another
environment: `python -m topsmon.flops` or `python PATH/topsmon/flops`, one JSON document on stdout.

Rules
-----
- A multiply and an add are 2 FLOPs; a MAC (multiply-add) is half of that. Matrix products,
  convolutions, attention and recurrent cells are `flops`. All else that computes (bias, activation,
  normalisation, softmax, reductions) is `other_flops`, kept apart so that `flops` compares with
  published counts of models, which leave it out.
- The backward pass is derived from the forward one, operation by operation: a product costs as many
  FLOPs again for each of its two operands that needs a gradient. Nothing is recomputed, so
  activation checkpointing does not raise the count: these are model FLOPs as in the definition of
  MFU, which "does not include any rematerialization" (Chowdhery et al., PaLM, arXiv 2204.02311,
  appendix B). For the same reason the backward pass of attention is 4 products, not the 5 that a
  flash kernel executes.
- Zeros that padding adds are multiplied and therefore counted; causal attention counts in full, as
  in PaLM's formula (12 L H Q T a token), and a note says how much of it is masked.
- `bytes` is what the operations read and write if each reads its operands and writes its results
  once, at their own types: no fusion, no reuse in a cache between operations. Views move nothing,
  an embedding reads its rows only. Backward, a product reads the incoming gradient and the other
  operand and writes the gradient.
- What has no formula is named in `uncounted`, and the totals are lower bounds.
"""
