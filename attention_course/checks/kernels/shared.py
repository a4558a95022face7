"""What the exercises of this chapter share: drawing inputs, and functions that several of them build on."""

NAME = "08_kernels"
