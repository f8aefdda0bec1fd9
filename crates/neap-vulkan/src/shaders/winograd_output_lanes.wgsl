// Of Winograd: from products to outputs. One invocation: four channels of one tile.

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> w: array<vec4<f32>>;

fn row(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>) -> array<vec4<f32>, 2> {
    return array<vec4<f32>, 2>(a + b + c, b - c - d);
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let s = params.shape;
    if id.x >= s.tiles * 4u {
        return;
    }
    let j = id.x % 4u;
    let place = place_of(id.x / 4u);
    let top = place.top;
    let left = place.left;
    let point = s.panels * s.room * 4u;
    let from_point = params.call.x_at + id.y * s.room * 4u + id.x;
    var cols: array<array<vec4<f32>, 2>, 4>;
    for (var k = 0u; k < 4u; k++) {
        let at = from_point + k * point;
        cols[k] = row(x[at], x[at + 4u * point], x[at + 8u * point], x[at + 12u * point]);
    }
    let start = w[params.call.w_at + id.y * (1u + 9u * s.c_in) * 4u + j];
    let plane = (place.image * s.planes_out + s.first_panel + id.y) * s.out_h * s.out_w;
    let to = (plane + top * s.out_w + left) * 4u + j;
    let has_right = left + 1u < s.out_w;
    for (var i = 0u; i < 2u; i++) {
        let both = row(cols[0][i], cols[1][i], cols[2][i], cols[3][i]);
        if top + i < s.out_h {
            finish(to + i * s.out_w * 4u, start + both[0]);
            if has_right {
                finish(to + (i * s.out_w + 1u) * 4u, start + both[1]);
            }
        }
    }
    if !MORE || is_bound() {
        return;
    }
    for (var i = 0u; i < min(2u, s.out_h - top); i++) {
        for (var k = 0u; k < min(2u, s.out_w - left); k++) {
            curve(to + (i * s.out_w + k) * 4u);
        }
    }
}
