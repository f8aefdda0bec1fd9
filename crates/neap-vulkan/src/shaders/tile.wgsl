// Four places times the channels of two panels, whose weights lanes tell each other.

fn product(sum: vec4<f32>, x: vec4<f32>, w0: vec4<f32>, w1: vec4<f32>, w2: vec4<f32>, w3: vec4<f32>) -> vec4<f32> {
    return sum + x.x * w0 + x.y * w1 + x.z * w2 + x.w * w3;
}

// Four channels of four places, from four channels of input.
fn add(
    j: u32,
    x0: vec4<f32>,
    x1: vec4<f32>,
    x2: vec4<f32>,
    x3: vec4<f32>,
    w0: vec4<f32>,
    w1: vec4<f32>,
    w2: vec4<f32>,
    w3: vec4<f32>,
) {
    sums[0][j] = product(sums[0][j], x0, w0, w1, w2, w3);
    sums[1][j] = product(sums[1][j], x1, w0, w1, w2, w3);
    sums[2][j] = product(sums[2][j], x2, w0, w1, w2, w3);
    sums[3][j] = product(sums[3][j], x3, w0, w1, w2, w3);
}

// The same of all channels. Lanes have loaded two steps in each four: of the first panel, then of the second.
fn add_panels(
    x0: vec4<f32>,
    x1: vec4<f32>,
    x2: vec4<f32>,
    x3: vec4<f32>,
    a: vec4<f32>,
    b: vec4<f32>,
    c: vec4<f32>,
    d: vec4<f32>,
) {
    add(0u, x0, x1, x2, x3, subgroupBroadcast(a, 0u), subgroupBroadcast(a, 4u), subgroupBroadcast(b, 0u), subgroupBroadcast(b, 4u));
    add(1u, x0, x1, x2, x3, subgroupBroadcast(a, 1u), subgroupBroadcast(a, 5u), subgroupBroadcast(b, 1u), subgroupBroadcast(b, 5u));
    add(2u, x0, x1, x2, x3, subgroupBroadcast(a, 2u), subgroupBroadcast(a, 6u), subgroupBroadcast(b, 2u), subgroupBroadcast(b, 6u));
    add(3u, x0, x1, x2, x3, subgroupBroadcast(a, 3u), subgroupBroadcast(a, 7u), subgroupBroadcast(b, 3u), subgroupBroadcast(b, 7u));
    add(4u, x0, x1, x2, x3, subgroupBroadcast(c, 0u), subgroupBroadcast(c, 4u), subgroupBroadcast(d, 0u), subgroupBroadcast(d, 4u));
    add(5u, x0, x1, x2, x3, subgroupBroadcast(c, 1u), subgroupBroadcast(c, 5u), subgroupBroadcast(d, 1u), subgroupBroadcast(d, 5u));
    add(6u, x0, x1, x2, x3, subgroupBroadcast(c, 2u), subgroupBroadcast(c, 6u), subgroupBroadcast(d, 2u), subgroupBroadcast(d, 6u));
    add(7u, x0, x1, x2, x3, subgroupBroadcast(c, 3u), subgroupBroadcast(c, 7u), subgroupBroadcast(d, 3u), subgroupBroadcast(d, 7u));
}

