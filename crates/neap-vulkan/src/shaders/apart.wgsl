// Two places.

const STRIDE = 2u;
