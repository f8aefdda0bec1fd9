// Elements of other types than floats: selected, converted, compared, combined. An element is two words, of which all types but 64-bit
// integers fill the first. One invocation makes the elements of a word of the result: four bytes, or one of anything else.

struct Shape {
    elements: u32,
    // 0: x converted, 1: w where x, else r, 2: and, 3: or, 4: exclusive or, 5: not, 6: equal, 7: less, 8: less or equal,
    // 9: greater, 10: greater or equal
    does: u32,
    // Of x, of w and r, of the result. 0: float, 1: integer, 2: integer of 64 bits, 3: boolean, 4: byte
    x_type: u32,
    w_type: u32,
    y_type: u32,
    // Operands that are where the result goes, as they are: a bit for each of x, w, r.
    in_place: u32,
    unused: vec2<u32>,
    // Of four axes, the first outermost.
    dims: vec4<u32>,
    x_steps: vec4<u32>,
    w_steps: vec4<u32>,
    r_steps: vec4<u32>,
}

@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> w: array<u32>;
@group(0) @binding(3) var<storage, read> r: array<u32>;
@group(0) @binding(4) var<storage, read_write> y: array<u32>;

fn is_byte(ty: u32) -> bool {
    return ty >= 3u;
}

fn byte_of(word: u32, at: u32) -> vec2<u32> {
    return vec2<u32>((word >> (at % 4u * 8u)) & 255u, 0u);
}

fn from_x(at: u32, ty: u32) -> vec2<u32> {
    let first = params.call.x_at;
    if is_byte(ty) {
        return byte_of(x[first + at / 4u], at);
    }
    if ty == 2u {
        return vec2<u32>(x[first + at * 2u], x[first + at * 2u + 1u]);
    }
    return vec2<u32>(x[first + at], 0u);
}

fn from_w(at: u32, ty: u32) -> vec2<u32> {
    let first = params.call.w_at;
    if is_byte(ty) {
        return byte_of(w[first + at / 4u], at);
    }
    if ty == 2u {
        return vec2<u32>(w[first + at * 2u], w[first + at * 2u + 1u]);
    }
    return vec2<u32>(w[first + at], 0u);
}

fn from_r(at: u32, ty: u32) -> vec2<u32> {
    let first = params.call.r_at;
    if is_byte(ty) {
        return byte_of(r[first + at / 4u], at);
    }
    if ty == 2u {
        return vec2<u32>(r[first + at * 2u], r[first + at * 2u + 1u]);
    }
    return vec2<u32>(r[first + at], 0u);
}

fn from_y(at: u32, ty: u32) -> vec2<u32> {
    let first = params.call.y_at;
    if is_byte(ty) {
        return byte_of(y[first + at / 4u], at);
    }
    if ty == 2u {
        return vec2<u32>(y[first + at * 2u], y[first + at * 2u + 1u]);
    }
    return vec2<u32>(y[first + at], 0u);
}

// The word above a number of 32 bits.
fn above(low: u32) -> u32 {
    return bitcast<u32>(bitcast<i32>(low) >> 31u);
}

fn is_true(value: vec2<u32>, ty: u32) -> bool {
    // Either zero is false.
    return select(value.x | value.y, value.x & 0x7fffffffu, ty == 0u) != 0u;
}

fn float_of(value: vec2<u32>, ty: u32) -> f32 {
    let near = f32(bitcast<i32>(value.x));
    switch ty {
        case 0u: { return bitcast<f32>(value.x); }
        case 1u: { return near; }
        case 2u: {
            let far = f32(bitcast<i32>(value.y)) * 4294967296.0 + f32(value.x);
            return select(far, near, value.y == above(value.x));
        }
        case 3u: { return select(0.0, 1.0, value.x != 0u); }
        default: { return f32(value.x); }
    }
}

fn converted(value: vec2<u32>, ty: u32) -> vec2<u32> {
    let to = params.shape.y_type;
    if to == 0u {
        return vec2<u32>(bitcast<u32>(float_of(value, ty)), 0u);
    }
    if to == 3u {
        return vec2<u32>(select(0u, 1u, is_true(value, ty)), 0u);
    }
    var number = value;
    switch ty {
        case 1u: { number = vec2<u32>(value.x, above(value.x)); }
        case 3u: { number = vec2<u32>(select(0u, 1u, value.x != 0u), 0u); }
        default: {}
    }
    return number;
}

fn is_less(a: vec2<u32>, b: vec2<u32>, ty: u32) -> bool {
    switch ty {
        case 0u: { return bitcast<f32>(a.x) < bitcast<f32>(b.x); }
        case 1u: { return bitcast<i32>(a.x) < bitcast<i32>(b.x); }
        case 2u: {
            let is_below = bitcast<i32>(a.y) < bitcast<i32>(b.y);
            return is_below || (a.y == b.y && a.x < b.x);
        }
        default: { return a.x < b.x; }
    }
}

fn is_equal(a: vec2<u32>, b: vec2<u32>, ty: u32) -> bool {
    if ty == 0u {
        return bitcast<f32>(a.x) == bitcast<f32>(b.x);
    }
    return all(a == b);
}

// A boolean.
fn told(does: u32, a: vec2<u32>, b: vec2<u32>, ty: u32) -> bool {
    switch does {
        case 2u: { return a.x != 0u && b.x != 0u; }
        case 3u: { return a.x != 0u || b.x != 0u; }
        case 4u: { return (a.x != 0u) != (b.x != 0u); }
        case 5u: { return a.x == 0u; }
        case 6u: { return is_equal(a, b, ty); }
        case 7u: { return is_less(a, b, ty); }
        case 8u: { return is_less(a, b, ty) || is_equal(a, b, ty); }
        case 9u: { return is_less(b, a, ty); }
        default: { return is_less(b, a, ty) || is_equal(a, b, ty); }
    }
}

fn result(i: u32) -> vec2<u32> {
    let s = params.shape;
    var at = vec3<u32>(0u);
    var rest = i;
    for (var back = 0u; back < 4u; back++) {
        let axis = 3u - back;
        let size = params.shape.dims[axis];
        let place = rest % size;
        rest /= size;
        at += place * vec3<u32>(params.shape.x_steps[axis], params.shape.w_steps[axis], params.shape.r_steps[axis]);
    }
    var a: vec2<u32>;
    if (s.in_place & 1u) != 0u {
        a = from_y(i, s.x_type);
    } else {
        a = from_x(at.x, s.x_type);
    }
    if s.does == 0u {
        return converted(a, s.x_type);
    }
    var b = vec2<u32>(0u);
    if (s.in_place & 2u) != 0u {
        b = from_y(i, s.w_type);
    } else if s.does != 5u {
        b = from_w(at.y, s.w_type);
    }
    if s.does != 1u {
        return vec2<u32>(select(0u, 1u, told(s.does, a, b, s.x_type)), 0u);
    }
    var c: vec2<u32>;
    if (s.in_place & 4u) != 0u {
        c = from_y(i, s.w_type);
    } else {
        c = from_r(at.z, s.w_type);
    }
    return select(c, b, a.x != 0u);
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let s = params.shape;
    let first = params.call.y_at;
    let step = select(1u, 4u, is_byte(s.y_type));
    for (var i = id.x * step; i < s.elements; i += groups.x * 64u * step) {
        let value = result(i);
        if is_byte(s.y_type) {
            var word = value.x;
            for (var j = 1u; j < 4u; j++) {
                word |= result(i + j).x << (j * 8u);
            }
            y[first + i / 4u] = word;
        } else if s.y_type == 2u {
            y[first + i * 2u] = value.x;
            y[first + i * 2u + 1u] = value.y;
        } else {
            y[first + i] = value.x;
        }
    }
}
