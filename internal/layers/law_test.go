package layers

// A layer is a folder with all that is below it, unless a longer one is named as well.
// Its packages may import what stands in the folders of may, with all below them, and
// whatever is not of this module.
type layer struct {
	folder string
	may    []string
	exact  bool // the folder's own package alone
}

// leaves are the parts of internal/ that the pure core may use.
var leaves = []string{"internal/invariant", "internal/nodepath", "internal/limit"}

// layers is the house from the ground up.
var layers = []layer{
	{folder: "paxos", may: leaves},
	{folder: "store", may: append([]string{"store"}, leaves...)},

	{folder: "replog", may: []string{"replog", "paxos", "internal"}},
	// The node decides: it knows none of the shells beside it.
	{folder: "replog", exact: true, may: []string{"replog/codec", "replog/pb", "paxos", "internal"}},
	// The shells, lowest first. None knows the node but storage and peer, which speak
	// its language.
	{folder: "replog/pb"},
	{folder: "replog/codec", may: []string{"replog/pb", "paxos", "internal"}},
	{folder: "replog/vfs", may: []string{"replog/vfs", "internal"}},
	{folder: "replog/ondisk", may: []string{"replog/codec", "replog/pb", "internal"}},
	{folder: "replog/wal", may: []string{"replog/codec", "replog/pb", "replog/ondisk", "replog/vfs", "paxos", "internal"}},
	{folder: "replog/snapfile", may: []string{"replog/codec", "replog/pb", "replog/ondisk", "replog/vfs", "paxos", "internal"}},
	{folder: "replog/peer/lane", may: []string{"replog/pb", "internal"}},

	{folder: "lockd", may: []string{"lockd", "replog", "store", "internal"}},
	{folder: "client", may: []string{"client", "internal"}},
	{folder: "internal", may: []string{"internal"}},
	{folder: "sim", may: []string{""}},
}

// An exception is an import against the law that stands for now, with the reason. One
// that is no longer needed is a failure: the list only gets shorter by itself.
type exception struct{ from, to, reason string }

var exceptions = []exception{
	{"lockd/master", "paxos", "slots, ballots and roles are named by paxos's types, and the log hands them on as they are"},
	{"lockd/replica", "paxos", "slots, ballots and roles are named by paxos's types, and the log hands them on as they are"},
	{"lockd/server", "paxos", "slots, ballots and roles are named by paxos's types, and the log hands them on as they are"},
	{"client", "store/pb", "the native protocol carries the store's commands and results as they are"},
	{"client/machine", "store/pb", "the native protocol carries the store's commands and results as they are"},
	{"internal/wire/pb", "store/pb", "the native protocol carries the store's commands and results as they are"},
	{"internal/attack", "client", "it is a program that attacks a cell, and no library"},
	{"internal/attack", "store/pb", "it is a program that attacks a cell, and no library"},
}

// top is imported by nothing but itself, not even by a test.
const top = "sim"

// deciding are the packages that decide. They are given events with the time and give
// back effects, so that one seed is one run.
var deciding = []string{"paxos", "store", "replog", "replog/peer/lane", "lockd/master", "lockd/replica", "client/machine"}

// impure are imports that no deciding package has: what comes through them is not in
// its events. A name that ends with a slash is all that is below it.
var impure = []string{"os", "os/", "net", "net/", "sync", "sync/", "syscall", "context", "log", "log/", "runtime", "runtime/",
	"io/fs", "math/rand", "crypto/rand", "hash/maphash", "unsafe", "golang.org/x/sys/"}

// narrow are imports of which a deciding package may use some names alone.
var narrow = map[string][]string{
	// A generator that is made from the seed that the caller gives.
	"math/rand/v2": {"New", "NewPCG", "PCG", "Rand"},
}

// clock are the names of package time by which time passes, or is looked at.
var clock = []string{"Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick", "Sleep", "Timer", "Ticker"}
