package envelope

// Report is what the gateway of a recipient tells the sender of a message
// about it, in process or as an envelope of its own.
type Report struct {
	Kind       Kind   // INJECTED, DEFERRED, FAILED or ABANDONED
	Reason     string // an error code of design §11, or why it waits
	MsgID      string // the message reported on
	TraceID    string
	Sender     string // who sent it: gid, or the gateway that asked with a QUERY
	SenderHost string
	Recipient  string // gid
	Hops       int    // of the message reported on
}

// ReportOf reads the report that an envelope carries.
func ReportOf(e *Envelope) Report {
	return Report{
		Kind: e.Kind, Reason: e.Reason, MsgID: e.InReplyTo, TraceID: e.TraceID,
		Sender: e.To, Recipient: e.From, Hops: e.Hops,
	}
}
