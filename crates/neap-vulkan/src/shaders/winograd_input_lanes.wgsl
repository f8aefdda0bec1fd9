// Of Winograd: from places of the input to values. One invocation: four channels of one tile.

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;

fn row(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>) -> array<vec4<f32>, 4> {
    return array<vec4<f32>, 4>(a - c, b + c, c - b, b - d);
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let s = params.shape;
    if id.x >= s.tiles * 4u {
        return;
    }
    let j = id.x % 4u;
    let place = place_of(id.x / 4u);
    let top = i32(place.top) - i32(s.pad_h);
    let left = i32(place.left) - i32(s.pad_w);
    let plane = params.call.x_at + (place.image * s.planes_in + id.y) * s.in_h * s.in_w * 4u + j;
    var places: array<array<vec4<f32>, 4>, 4>;
    for (var i = 0u; i < 4u; i++) {
        for (var k = 0u; k < 4u; k++) {
            let at = vec2<i32>(top + i32(i), left + i32(k));
            let inside = at.x >= 0 && at.x < i32(s.in_h) && at.y >= 0 && at.y < i32(s.in_w);
            let origin = plane + select(0u, u32(at.x * i32(s.in_w) + at.y) * 4u, inside);
            places[i][k] = select(vec4<f32>(0.0), x[origin], inside);
        }
    }
    let c0 = row(places[0][0], places[1][0], places[2][0], places[3][0]);
    let c1 = row(places[0][1], places[1][1], places[2][1], places[3][1]);
    let c2 = row(places[0][2], places[1][2], places[2][2], places[3][2]);
    let c3 = row(places[0][3], places[1][3], places[2][3], places[3][3]);
    let point = s.planes_in * s.room * 4u;
    let to = params.call.y_at + id.y * s.room * 4u + id.x;
    for (var i = 0u; i < 4u; i++) {
        let all = row(c0[i], c1[i], c2[i], c3[i]);
        for (var k = 0u; k < 4u; k++) {
            y[to + (i * 4u + k) * point] = all[k];
        }
    }
}
