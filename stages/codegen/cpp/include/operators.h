// The operators of the loop IR that are no transcendental function, and conversions, on vectors of any shape.

namespace weld {

#define BINARY(name, expression)                                             \
  template <class V> INLINE V name(V a, V b) {                               \
    if constexpr (is_pair<V>) return {name(a.lo, b.lo), name(a.hi, b.hi)};   \
    else return (V)(expression);                                             \
  }
#define COMPARE(name, sign)                                                  \
  template <class V> INLINE mask_of<V> name(V a, V b) {                      \
    if constexpr (is_pair<V>) return {name(a.lo, b.lo), name(a.hi, b.hi)};   \
    else return (mask_of<V>)(a sign b);                                      \
  }
#define UNARY(name, expression)                                              \
  template <class V> INLINE V name(V a) {                                    \
    if constexpr (is_pair<V>) return {name(a.lo), name(a.hi)};               \
    else return (V)(expression);                                             \
  }

COMPARE(eq, ==)
COMPARE(ne, !=)
COMPARE(lt, <)
COMPARE(le, <=)
COMPARE(gt, >)
COMPARE(ge, >=)

// Masks of different widths compare as truth values.
template <class A, class B> INLINE auto mask_eq(A a, B b) { return logical_not(logical_xor(a, b)); }
template <class A, class B> INLINE auto mask_ne(A a, B b) { return logical_xor(a, b); }
template <class A, class B> INLINE auto mask_lt(A a, B b) { return logical_and(logical_not(a), b); }
template <class A, class B> INLINE auto mask_le(A a, B b) { return logical_or(logical_not(a), b); }
template <class A, class B> INLINE auto mask_gt(A a, B b) { return logical_and(a, logical_not(b)); }
template <class A, class B> INLINE auto mask_ge(A a, B b) { return logical_or(a, logical_not(b)); }
template <class M, class A, class B> INLINE auto mask_select(M mask, A a, B b) {
  return logical_or(logical_and(mask, a), logical_and(logical_not(mask), b));
}

BINARY(add, a + b)
BINARY(sub, a - b)
BINARY(mul, a * b)
BINARY(div, a / b)
BINARY(bitand_, a & b)
BINARY(bitor_, a | b)
BINARY(bitxor_, a ^ b)
UNARY(bitnot, ~a)
UNARY(neg, -a)

template <class V> INLINE mask_of<V> isnan(V a) { return ne(a, a); }

// The larger or smaller operand, b where either is a NaN or they are equal: one x86 instruction that GCC does not find.
#define EXTREME(name, sign, instruction)                                                               \
  template <class V> INLINE V name(V a, V b) {                                                         \
    if constexpr (is_pair<V>) return {name(a.lo, b.lo), name(a.hi, b.hi)};                             \
    X86_EXTREME(instruction)                                                                           \
    else return a sign b ? a : b;                                                                      \
  }
#if defined(__AVX__)
#define X86_EXTREME(instruction)                                                                                 \
  else if constexpr (same<V, native<float, 4>::type>) return __builtin_ia32_##instruction##ps(a, b);             \
  else if constexpr (same<V, native<double, 2>::type>) return __builtin_ia32_##instruction##pd(a, b);            \
  else if constexpr (same<V, native<float, 8>::type>) return __builtin_ia32_##instruction##ps256(a, b);          \
  else if constexpr (same<V, native<double, 4>::type>) return __builtin_ia32_##instruction##pd256(a, b);
#else
#define X86_EXTREME(instruction)
#endif
EXTREME(larger_of, >, max)
EXTREME(smaller_of, <, min)

// A NaN in either operand comes out; of equal operands, such as two zeros, the first.
template <class V> INLINE V maximum(V a, V b) {
  if constexpr (is_float<element_of<V>>) return select(isnan(b), b, larger_of(b, a));
  else return larger_of(b, a);
}
template <class V> INLINE V minimum(V a, V b) {
  if constexpr (is_float<element_of<V>>) return select(isnan(b), b, smaller_of(b, a));
  else return smaller_of(b, a);
}

// ---- sign bits -------------------------------------------------------------------------------

template <class V> using bits_of = typename shape<V>::template like<typename whole_number<sizeof(element_of<V>)>::type>;
template <class T> constexpr auto sign_bit = typename whole_number<sizeof(T)>::type(1ull << (8 * sizeof(T) - 1));

template <class V> INLINE V abs(V a) {
  if constexpr (is_pair<V>) return {abs(a.lo), abs(a.hi)};
  else if constexpr (is_float<element_of<V>>) return bits_as<V>(bits_as<bits_of<V>>(a) & ~sign_bit<element_of<V>>);
  else return (V)(a < 0 ? (V)-a : a);
}

template <class V> INLINE V copysign(V size, V sign) {
  if constexpr (is_pair<V>) return {copysign(size.lo, sign.lo), copysign(size.hi, sign.hi)};
  else {
    constexpr auto bit = sign_bit<element_of<V>>;
    return bits_as<V>((bits_as<bits_of<V>>(size) & ~bit) | (bits_as<bits_of<V>>(sign) & bit));
  }
}

template <class V> INLINE mask_of<V> isinf(V a) {
  return eq(abs(a), splat_as<V>(std::numeric_limits<element_of<V>>::infinity()));
}

// -1, 0 or 1; 0 for a NaN, as torch has it.
template <class V> INLINE V sign(V a) {
  const V zero = splat_as<V>(0), one = splat_as<V>(1);
  return sub(select(gt(a, zero), one, zero), select(lt(a, zero), one, zero));
}

// ---- whole numbers -----------------------------------------------------------------------------

// A divisor of 0 or -1 in a lane that nobody looks at must not trap.
template <class T> INLINE bool is_minus_one(T b) { return T(-1) < T(0) && b == T(-1); }
template <class T> INLINE T truncdiv_lane(T a, T b) { return b == 0 ? T(0) : is_minus_one(b) ? T(-a) : T(a / b); }
template <class T> INLINE T truncmod_lane(T a, T b) { return b == 0 || is_minus_one(b) ? T(0) : T(a % b); }
template <class T> INLINE T floordiv_lane(T a, T b) {
  const T rest = truncmod_lane(a, b);
  return truncdiv_lane(a, b) - T(rest != 0 && (rest < 0) != (b < 0));
}
template <class T> INLINE T mod_lane(T a, T b) {
  const T rest = truncmod_lane(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? T(rest + b) : rest;
}

// Shifts by less than 0 or by the width or more: 0, or the sign, as torch has it.
template <class T> INLINE T shl_lane(T a, T b) { return b < 0 || b >= T(8 * sizeof(T)) ? T(0) : T(a << b); }
template <class T> INLINE T shr_lane(T a, T b) {
  constexpr T last = 8 * sizeof(T) - 1;
  return T(-1) > T(0) && b > last ? T(0) : T(a >> (b < 0 || b > last ? last : b));
}

#define LANES_2(name, call)                                                              \
  template <class V> INLINE V name(V a, V b) {                                           \
    return map_lanes([](element_of<V> x, element_of<V> y) { return element_of<V>(call); }, a, b); \
  }
LANES_2(truncdiv, truncdiv_lane(x, y))
LANES_2(floordiv, floordiv_lane(x, y))
LANES_2(mod, mod_lane(x, y))
LANES_2(shl, shl_lane(x, y))
LANES_2(shr, shr_lane(x, y))

// An index as torch reads it: negative counts from the end. Out of range it is 0, and `outside` says so.
template <class V> INLINE V bounded(V index, V size) {
  const V zero = splat_as<V>(0);
  const V wrapped = add(index, select(lt(index, zero), size, zero));
  return select(logical_and(ge(wrapped, zero), lt(wrapped, size)), wrapped, zero);
}
template <class V> INLINE mask_of<V> outside(V index, V size) {
  return logical_or(lt(index, neg(size)), ge(index, size));
}

// ---- lanes -------------------------------------------------------------------------------------

// first, first + 1, ...
template <class V> INLINE V count_from(element_of<V> first) {
  if constexpr (is_pair<V>)
    return {count_from<decltype(V::lo)>(first), count_from<decltype(V::lo)>(first + count_of<V> / 2)};
  else if constexpr (count_of<V> == 1) return first;
  else {
    V v;
    UNROLLED for (int lane = 0; lane < count_of<V>; ++lane) v[lane] = lane;
    return v + first;
  }
}
template <class T = int64_t, int W, int N, int L> INLINE vec_of<T, W, N> positions(Lanes<W, N, L>, int64_t first) {
  return count_from<vec_of<T, W, N>>(T(first));
}

// v, with `other` in the lanes that are not live.
template <int W, int N, int L, class V> INLINE V live(Lanes<W, N, L>, V v, element_of<V> other) {
  if constexpr (L == N) return v;
  else {
    typedef vec_of<typename whole_number<sizeof(element_of<V>)>::type, W, N> Number;
    return select(lt(count_from<Number>(0), splat_as<Number>(L)), v, splat_as<V>(other));
  }
}

// v in the first lanes of a longer vector, `other` in the rest.
template <class To, class V> INLINE To widen(V v, element_of<V> other) {
  if constexpr (same<To, V>) return v;
  else return {widen<decltype(To::lo)>(v, other), splat_as<decltype(To::hi)>(other)};
}

// ---- conversions -------------------------------------------------------------------------------

// Numbers to numbers, as torch converts them. A float goes to a small whole number by way of a larger one.
template <class T, int W, int N, int L, class V> INLINE vec_of<T, W, N> convert(Lanes<W, N, L>, V v) {
  typedef element_of<V> From;
  typedef vec_of<T, W, N> To;
  if constexpr (is_float<From> && same<T, uint8_t>) return convert_to<To>(convert_to<vec_of<int64_t, W, N>>(v));
  else if constexpr (is_float<From> && sizeof(T) < 4) return convert_to<To>(convert_to<vec_of<int32_t, W, N>>(v));
  else if constexpr (sizeof(From) < 4 && is_float<T>) return convert_to<To>(convert_to<vec_of<int32_t, W, N>>(v));
  else return convert_to<To>(v);
}

// A mask as 0 and 1 of type T, and a number as whether it differs from 0.
template <class T, int W, int N, int L, class M> INLINE vec_of<T, W, N> from_bool(Lanes<W, N, L>, M mask) {
  typedef vec_of<T, W, N> To;
  return select(mask, splat_as<To>(1), splat_as<To>(0));
}
template <class V> INLINE mask_of<V> to_bool(V v) { return ne(v, splat_as<V>(0)); }

// bfloat16 is the upper half of a float32. Rounding is to nearest, ties to even; a NaN becomes the quiet one.
template <int W, int N, int L, class V> INLINE vec_of<float, W, N> from_bfloat16(Lanes<W, N, L>, V v) {
  typedef vec_of<uint32_t, W, N> Wide;
  return bits_as<vec_of<float, W, N>>(map([](auto x) { return (decltype(x))(x << 16); }, convert_to<Wide>(v)));
}
template <int W, int N, int L, class V> INLINE vec_of<uint16_t, W, N> to_bfloat16(Lanes<W, N, L>, V v) {
  typedef vec_of<uint32_t, W, N> Wide;
  const auto round_half = [](auto x) { return (decltype(x))((x + 0x7fffu + ((x >> 16) & 1u)) >> 16); };
  const Wide rounded = map(round_half, bits_as<Wide>(v));
  return convert_to<vec_of<uint16_t, W, N>>(select(isnan(v), splat_as<Wide>(0x7fc0), rounded));
}

}  // namespace weld
