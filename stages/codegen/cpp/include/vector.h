// Vectors of any element type and lane count, for generated kernels. No header but the language's own is needed.
//
// vec_of<T, W, N> holds N elements of T, of which W form one SIMD operation (fewer where W of T are more than a
// register holds). It is T itself for N = 1, a GCC/clang vector type while it fits one operation, and a Pair of halves
// beyond. Functions take any of the three; Lanes<W, N, Live> says how many lanes a load or store is about, of which
// only the first Live touch memory (the end of a row). A comparison gives a mask: bool for one lane, else a vector of
// whole numbers as wide as what was compared, 0 or -1; `select` takes a mask of any width.
//
// Compile with -fwrapv (whole numbers wrap) and -ffp-contract=off (nothing is fused but where fma is written).

#include <cstdint>
#include <cstring>
#include <limits>

#define INLINE inline __attribute__((always_inline))
#define ENTRY extern "C" __attribute__((visibility("default")))
#define UNROLLED _Pragma("GCC unroll 64")

namespace weld {

#if defined(__AVX512F__)
constexpr int register_bytes = 64;
#elif defined(__AVX2__)
constexpr int register_bytes = 32;
#else
constexpr int register_bytes = 16;
#endif

// ---- types ---------------------------------------------------------------------------------

template <class T, int N> struct native { typedef T type __attribute__((vector_size(N * sizeof(T)))); };
template <class T> struct native<T, 1> { typedef T type; };

template <class H> struct Pair { H lo, hi; };

constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

template <class T, int W, int N, bool whole = (N <= least(W, register_bytes / int(sizeof(T))))> struct shaped {
  typedef typename native<T, N>::type type;
};
template <class T, int W, int N> struct shaped<T, W, N, false> {
  typedef Pair<typename shaped<T, W, N / 2>::type> type;
};
template <class T, int W, int N> using vec_of = typename shaped<T, W, N>::type;

template <int W, int N, int Live = N> struct Lanes {};
constexpr Lanes<1, 1> scalar{};

template <class A, class B> constexpr bool same = false;
template <class A> constexpr bool same<A, A> = true;

template <class V> constexpr bool is_pair = false;
template <class H> constexpr bool is_pair<Pair<H>> = true;

template <int bytes> struct whole_number;
template <> struct whole_number<1> { typedef int8_t type; };
template <> struct whole_number<2> { typedef int16_t type; };
template <> struct whole_number<4> { typedef int32_t type; };
template <> struct whole_number<8> { typedef int64_t type; };

// Element type and lane count of a vector; `like<T>` has as many lanes of T, `mask` is what a comparison gives.
template <class V> struct shape {
  typedef __typeof__((*(V *)0)[0]) plain;
  template <class R> struct bare { typedef R type; };
  template <class R> struct bare<R &> { typedef R type; };
  typedef typename bare<plain>::type element;
  static constexpr int count = sizeof(V) / sizeof(element);
  template <class T> using like = typename native<T, count>::type;
  typedef like<typename whole_number<sizeof(element)>::type> mask;
};
template <class H> struct shape<Pair<H>> {
  typedef typename shape<H>::element element;
  static constexpr int count = 2 * shape<H>::count;
  template <class T> using like = Pair<typename shape<H>::template like<T>>;
  typedef Pair<typename shape<H>::mask> mask;
};
#define SCALAR(T)                                  \
  template <> struct shape<T> {                    \
    typedef T element;                             \
    static constexpr int count = 1;                \
    template <class U> using like = U;             \
    typedef bool mask;                             \
  };
SCALAR(bool) SCALAR(uint8_t) SCALAR(int8_t) SCALAR(int16_t) SCALAR(uint16_t) SCALAR(int32_t) SCALAR(uint32_t)
SCALAR(int64_t) SCALAR(uint64_t) SCALAR(float) SCALAR(double)
#undef SCALAR

template <class V> using element_of = typename shape<V>::element;
template <class V> using mask_of = typename shape<V>::mask;
template <class V> constexpr int count_of = shape<V>::count;
template <class T> constexpr bool is_float = same<T, float> || same<T, double>;

// ---- putting vectors together and taking them apart ------------------------------------------

template <class V> INLINE V splat_as(element_of<V> x) {
  if constexpr (is_pair<V>) {
    const auto half = splat_as<decltype(V::lo)>(x);
    return {half, half};
  } else {
    return x - V{};  // exact for every x, -0.0 too
  }
}
template <> INLINE bool splat_as<bool>(bool x) { return x; }

// x in every lane; a uniform condition as a mask of bytes.
template <int W, int N, int L, class T> INLINE auto splat(Lanes<W, N, L>, T x) {
  if constexpr (N == 1) return x;
  else if constexpr (same<T, bool>) return splat_as<vec_of<int8_t, W, N>>(x ? -1 : 0);
  else return splat_as<vec_of<T, W, N>>(x);
}

template <class V> INLINE auto low(V v) {
  typename native<element_of<V>, count_of<V> / 2>::type half;
  std::memcpy(&half, &v, sizeof half);
  return half;
}

template <class V> INLINE auto high(V v) {
  typename native<element_of<V>, count_of<V> / 2>::type half;
  std::memcpy(&half, (const char *)&v + sizeof half, sizeof half);
  return half;
}

template <class H> INLINE auto join(H lo, H hi) {
  constexpr int n = count_of<H>;
  typedef typename native<element_of<H>, 2 * n>::type V;
  if constexpr (n == 1) return V{lo, hi};
#if __has_builtin(__builtin_shufflevector)
  else if constexpr (n == 2) return (V)__builtin_shufflevector(lo, hi, 0, 1, 2, 3);
  else if constexpr (n == 4) return (V)__builtin_shufflevector(lo, hi, 0, 1, 2, 3, 4, 5, 6, 7);
  else if constexpr (n == 8)
    return (V)__builtin_shufflevector(lo, hi, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#endif
  else {
    V both;
    std::memcpy(&both, &lo, sizeof lo);
    std::memcpy((char *)&both + sizeof lo, &hi, sizeof hi);
    return both;
  }
}

// The same lanes as another vector type: elements converted as C converts them.
template <class To, class From> INLINE To convert_to(From v) {
  if constexpr (same<To, From>) return v;
  else if constexpr (is_pair<To> && is_pair<From>)
    return {convert_to<decltype(To::lo)>(v.lo), convert_to<decltype(To::lo)>(v.hi)};
  else if constexpr (is_pair<To>) return {convert_to<decltype(To::lo)>(low(v)), convert_to<decltype(To::lo)>(high(v))};
  else if constexpr (is_pair<From>) {
    typedef typename native<element_of<To>, count_of<To> / 2>::type Half;
    return join(convert_to<Half>(v.lo), convert_to<Half>(v.hi));
  } else if constexpr (count_of<To> == 1) return (To)v;
#if defined(__AVX__) && __has_builtin(__builtin_ia32_cvtps2pd256)  // else GCC makes four instructions of one
  else if constexpr (same<To, native<double, 4>::type> && same<From, native<float, 4>::type>)
    return __builtin_ia32_cvtps2pd256(v);
#endif
  else return __builtin_convertvector(v, To);
}

// The same bits as another vector type with elements of the same size.
template <class To, class From> INLINE To bits_as(From v) {
  if constexpr (is_pair<To>) return {bits_as<decltype(To::lo)>(v.lo), bits_as<decltype(To::lo)>(v.hi)};
  else {
    To result;
    std::memcpy(&result, &v, sizeof result);
    return result;
  }
}

// f on every part of a vector that is one SIMD operation.
template <class F, class V> INLINE V map(F f, V v) {
  if constexpr (is_pair<V>) return {map(f, v.lo), map(f, v.hi)};
  else return f(v);
}

// f on every lane by itself.
template <class F, class V> INLINE V map_lanes(F f, V a) {
  if constexpr (is_pair<V>) return {map_lanes(f, a.lo), map_lanes(f, a.hi)};
  else if constexpr (count_of<V> == 1) return f(a);
  else {
    V result;
    UNROLLED for (int lane = 0; lane < count_of<V>; ++lane) result[lane] = f(a[lane]);
    return result;
  }
}
template <class F, class V> INLINE V map_lanes(F f, V a, V b) {
  if constexpr (is_pair<V>) return {map_lanes(f, a.lo, b.lo), map_lanes(f, a.hi, b.hi)};
  else if constexpr (count_of<V> == 1) return f(a, b);
  else {
    V result;
    UNROLLED for (int lane = 0; lane < count_of<V>; ++lane) result[lane] = f(a[lane], b[lane]);
    return result;
  }
}

// All lanes combined by f, neighbours last: a balanced tree.
template <class F, class V> INLINE auto fold(F f, V v) {
  if constexpr (is_pair<V>) return fold(f, f(v.lo, v.hi));
  else if constexpr (count_of<V> == 1) return v;
  else if constexpr (count_of<V> == 2) return f(element_of<V>(v[0]), element_of<V>(v[1]));
  else return fold(f, f(low(v), high(v)));
}

// ---- masks ---------------------------------------------------------------------------------

struct Or { template <class V> INLINE V operator()(V a, V b) const { return a | b; } };
struct And { template <class V> INLINE V operator()(V a, V b) const { return a & b; } };

template <class M> INLINE bool any_lane(M mask) { return fold(Or(), mask) != 0; }
template <class M> INLINE bool all_lanes(M mask) { return fold(And(), mask) != 0; }

// a or b where the mask holds; `mask` may be one bool for all lanes.
template <class M, class V> INLINE V select(M mask, V a, V b) {
  if constexpr (same<M, bool>) return mask ? a : b;
  else if constexpr (is_pair<V>) {
    const auto fitting = convert_to<mask_of<V>>(mask);
    return {select(fitting.lo, a.lo, b.lo), select(fitting.hi, a.hi, b.hi)};
  } else return convert_to<mask_of<V>>(mask) ? a : b;
}

// Two masks over the narrower of their types.
template <class F, class A, class B> INLINE auto merge_masks(F f, A a, B b) {
  if constexpr (is_pair<A> && is_pair<B>) {
    const auto lo = merge_masks(f, a.lo, b.lo);
    return Pair<__typeof__(merge_masks(f, a.lo, b.lo))>{lo, merge_masks(f, a.hi, b.hi)};
  } else if constexpr (sizeof(element_of<A>) <= sizeof(element_of<B>)) return f(a, convert_to<A>(b));
  else return f(convert_to<B>(a), b);
}
template <class A, class B> INLINE auto logical_and(A a, B b) { return merge_masks(And(), a, b); }
template <class A, class B> INLINE auto logical_or(A a, B b) { return merge_masks(Or(), a, b); }
struct Xor { template <class V> INLINE V operator()(V a, V b) const { return a ^ b; } };
template <class A, class B> INLINE auto logical_xor(A a, B b) { return merge_masks(Xor(), a, b); }
template <class M> INLINE M logical_not(M a) {
  if constexpr (is_pair<M>) return {logical_not(a.lo), logical_not(a.hi)};
  else if constexpr (same<M, bool>) return !a;
  else return ~a;
}

// `select` of masks, which may be of three types.
template <class M, class A, class B> INLINE auto mask_select(M mask, A a, B b) {
  return logical_or(logical_and(mask, a), logical_and(logical_not(mask), b));
}

}  // namespace weld
