"""Link prediction: pairs to train on, their negatives, samples without a pair's own edges, and decoders."""
