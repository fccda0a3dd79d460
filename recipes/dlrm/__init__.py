"""A recommendation model like DLRM: a branch for each feature, interactions between them, and more dense layers."""
