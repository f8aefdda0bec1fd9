//! IR to IR: fusion, layout assignment, aliasing, packing recipes.
