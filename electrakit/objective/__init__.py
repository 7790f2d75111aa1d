"""The pretraining objectives: replaced-token detection, masked language modelling, and the paper's mixtures of the two."""
