// Windows of neighbouring outputs are one place apart.

const STRIDE = 1u;
