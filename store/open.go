package store

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"fleetd/fault"

	"github.com/hashicorp/go-hclog"
	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// DefaultFile is the name of the store's file in the data directory.
const DefaultFile = "bridged.db"

const (
	defaultLockTimeout = time.Second
	defaultMaxBatch    = 256
	// initialMap is address space, not file size; a map that need not grow
	// never makes the writer wait for readers (library fact §2).
	initialMap = 256 << 20
)

// Options say where the store lives and how it behaves.
type Options struct {
	Dir         string                 // the data directory, made with mode 0700 if absent
	File        string                 // name in Dir, default DefaultFile
	Steps       []func(*bolt.Tx) error // schema steps, oldest first (package migrations)
	Now         func() time.Time       // default time.Now
	Logger      hclog.Logger           // default: none
	LockTimeout time.Duration          // wait for a held lock, default 1 s
	MaxBatch    int                    // most requests in one commit, default 256
	MaxSize     int                    // bytes the file may grow to, in steps of 16 MiB; then writes fail as on a full disk; 0 = no bound

	// Synced lets a test stand in for a disk: it runs after each commit, and an
	// error makes that one whose last sync failed.
	Synced func() error
	hooks  hooks
}

// hooks let tests stand in for a disk that fails or is slow.
type hooks struct {
	// beforeCommit runs in the writer, inside each transaction, after its
	// functions; an error makes the commit fail.
	beforeCommit func() error
	// wipe runs before a commit that failed is taken back; an error: it cannot be.
	wipe func() error
}

func (o *Options) fill() error {
	if o.Dir == "" || len(o.Steps) == 0 {
		return fault.New(fault.Internal, "the store was opened without a directory or without schema steps; this is a defect of the program")
	}
	o.File = cmp.Or(o.File, DefaultFile)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	if o.LockTimeout <= 0 {
		o.LockTimeout = defaultLockTimeout
	}
	if o.MaxBatch <= 0 {
		o.MaxBatch = defaultMaxBatch
	}
	return nil
}

// Store is the open file. Its methods may be called from any goroutine.
type Store struct {
	opts Options
	path string
	log  hclog.Logger
	db   atomic.Pointer[bolt.DB] // replaced by Compact and revoke; nil while it is not open
	file sync.RWMutex            // held by readers, and while revoke opens the file anew

	wake chan struct{} // one slot: there is something to commit, or to stop for
	stop chan struct{} // closed by Close
	once sync.Once     // of stop
	over chan struct{} // closed when Run has ended

	mu     sync.Mutex
	phase  phase
	begun  bool       // Run was called
	queue  []*request // in order of arrival
	riders int        // of them, those that nobody waits for
	events []Event    // trace not yet committed
	since  time.Time  // when the oldest rider came
	traced time.Time  // when the oldest event came
	down   *outage    // nil while writes work
	began  time.Time  // when the commit under way did; zero: there is none
	unsure []*request // of the commit that failed, while it is not certain that it does not stand
	stats  counters

	standing    standing
	lastBytes   int64 // put by the latest transaction; the writer's own
	failedBytes int64 // put by the latest that failed; the writer's own
}

// Open opens the store, making it if there is none. The directory and the file
// must belong to this user alone. A store that another process holds, that a
// newer build has written or that is damaged is refused with a sentence that
// says so; one of an older schema is copied aside and moved forward.
func Open(ctx context.Context, opts Options) (*Store, error) {
	if err := opts.fill(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fault.Wrap(err, fault.StoreUnavailable, "the start was cancelled before the store was opened; start again")
	}
	s := &Store{
		opts: opts,
		path: filepath.Join(opts.Dir, opts.File),
		log:  opts.Logger,
		wake: make(chan struct{}, 1),
		stop: make(chan struct{}),
		over: make(chan struct{}),
	}
	if err := prepareDir(opts.Dir); err != nil {
		return nil, err
	}
	if err := checkFile(s.path); err != nil {
		return nil, err
	}
	db, err := openBolt(s.path, opts.boltOptions())
	if errors.Is(err, berrors.ErrTimeout) {
		return nil, heldError(s.path)
	}
	if err != nil {
		return nil, openFault(s.path, err)
	}
	s.db.Store(db)
	if err := s.settle(ctx, db); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// settle does what only the holder of the lock may do before others look in.
func (s *Store) settle(ctx context.Context, db *bolt.DB) error {
	if err := writeHolder(s.path, s.opts.Now()); err != nil {
		return openError(s.path, err)
	}
	err := removeLeftovers(s.path)
	if err != nil {
		err = openError(s.path, err)
	} else if err = s.migrate(ctx, db); err == nil {
		if err = errors.Join(unseal(db), syncDir(s.opts.Dir)); err != nil {
			err = openError(s.path, err)
		}
	}
	if err != nil {
		return errors.Join(err, removeHolder(s.path))
	}
	return nil
}

func openError(path string, cause error) error {
	return fault.Wrap(cause, fault.StoreUnavailable, "the store %s cannot be opened; see the cause, mend it and start again", path)
}

// openFault is openError for a cause that may have a sentence of its own.
func openFault(path string, cause error) error {
	if _, ok := errors.AsType[*fault.Error](cause); ok {
		return cause
	}
	return openError(path, cause)
}

func (o *Options) boltOptions() *bolt.Options {
	return &bolt.Options{
		Timeout:         o.LockTimeout,
		FreelistType:    bolt.FreelistMapType,
		NoFreelistSync:  true,
		InitialMmapSize: initialMap,
		MaxSize:         o.MaxSize,
	}
}

// openBolt opens the file, unless it is damaged.
func openBolt(path string, opts *bolt.Options) (*bolt.DB, error) {
	if err := preflight(path, *opts); err != nil {
		return nil, err
	}
	return bolt.Open(path, 0o600, opts)
}

// Close ends Run if it still runs, waits for it and for open Views, and closes
// the file. It may be called twice.
func (s *Store) Close() error {
	s.once.Do(func() { close(s.stop) })
	if s.retire() {
		<-s.over
	}
	db := s.db.Swap(nil)
	if db == nil {
		return nil
	}
	if s.Healthy() == nil {
		if err := seal(db); err != nil {
			s.log.Warn("the next start has to read through the whole store", "error", err)
		}
	}
	err := errors.Join(removeHolder(s.path), db.Close())
	if err != nil {
		return fault.Wrap(err, fault.StoreUnavailable, "the store %s was not closed cleanly; nothing that was acknowledged is lost", s.path)
	}
	return nil
}

// Path returns the path of the file.
func (s *Store) Path() string { return s.path }

// View runs fn in a read transaction and returns its error. It sees what is
// committed. fn copies out and returns: an open View holds up growth of the
// file, so fn does no I/O, waits for nothing, and calls neither Write nor View.
// A page that is damaged is STORE_UNAVAILABLE, as is a panic of fn.
func (s *Store) View(fn func(*Tx) error) (err error) {
	s.file.RLock()
	defer s.file.RUnlock()
	db := s.db.Load()
	if db == nil {
		return s.errNotOpen()
	}
	defer func() { s.noteDamage(err) }()
	var inner error
	if err := s.read(db, func(tx *bolt.Tx) { inner = fn(&Tx{bolt: tx}) }); err != nil {
		return err
	}
	return inner
}

// read is bolt's View without its panics.
func (s *Store) read(db *bolt.DB, fn func(*bolt.Tx)) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	began := false
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		if !began {
			s.giveUp(db)
		}
		s.log.Error("a read of the store panicked", "panic", p, "stack", string(debug.Stack()))
		err = s.unreadable(panicked(p))
	}()
	err = db.View(func(tx *bolt.Tx) error {
		began = true
		fn(tx)
		return nil
	})
	if err != nil {
		return fault.Wrap(err, fault.StoreUnavailable, "the store %s cannot be read; see the log", s.path)
	}
	return nil
}

func (s *Store) errNotOpen() error {
	if err := s.Healthy(); err != nil {
		return err
	}
	return errClosed()
}

func errClosed() error {
	return fault.New(fault.StoreUnavailable, "the store is closed because the gateway stops; ask again when it runs")
}

// syncDir makes the names in dir durable.
func syncDir(dir string) (err error) {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return d.Sync()
}
