INSTANCE_TYPE = 'ecs.gn6v-c10g1.20xlarge' 
NUM_GPUS = 8
parser.add_argument('--name', type=str, default='fastgpu-perseus-bert',
                   help="name of the current run, used for machine naming and tensorboard visualization")
parser.add_argument('--machines', type=int, default=1,
                help="how many machines to use")
args = parser.parse_args()
